"""What the pipeline on Spark costs: reading a topic, and making silver of generated events."""
