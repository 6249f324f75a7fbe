"""From the queue to the report: the order of the jobs, and what is shown meanwhile."""
