"""gRPC: the only place in the broker that knows protobuf."""
