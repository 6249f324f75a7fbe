"""What the data source and the jobs cost, measured from inside Spark: `python -m analytics bench`.

Each measurement is a process of its own and says what it found as one line of JSON. The load tests start them, watch
their memory and processor time from outside, and write docs/evidence/pipeline-benchmarks.json.
"""
