"""The name server's decisions, without network, clock or protobuf."""
