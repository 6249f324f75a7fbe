"""For tests of programs that use the data source: a Spark session of the test process."""
