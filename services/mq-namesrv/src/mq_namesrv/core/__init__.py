"""What the name server decides, without network, clock or protobuf."""
