"""The HTTP layer that services share. Of the service kit it imports plain values, never the database or the queue.

`application.build_api` makes a service's FastAPI application: its routes, /health, callers, problems, limits and spans.
Routes take their callers from `middleware`, their headers from `parameters`, and document their errors by `problem`.
`server.HttpServer` serves the application; `client.http_client` asks other services.
"""
