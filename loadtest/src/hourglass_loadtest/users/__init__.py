"""The Locust users, in Locust's own process, which is gevent's: nothing here imports gRPC, asyncio or the services.

plan.py         what the driver tells them, as a file
plan.py       how many visits a second there are, and when
records.py      what they saw, as a file for the driver
shopper.py      one user: visits at intended times, requests with retries
visits.py       browse, pay, abandon, pay at the last second, double click
locustfile.py   what `locust -f` is given
"""
