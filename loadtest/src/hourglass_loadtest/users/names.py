"""The names of requests, in Locust's statistics and in the report."""

from __future__ import annotations

LIST_PRODUCTS, GET_PRODUCT = "GET /products", "GET /products/{id}"
PLACE_ORDER, GET_ORDER, LIST_ORDERS = "POST /orders", "GET /orders/{id}", "GET /orders"
PAY, GET_PAYMENT = "POST /payments", "GET /payments/{id}"
