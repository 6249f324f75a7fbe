"""The wire and disk formats of the queue.

`record` is the one codec of messages, the same on the wire and on disk; `properties`, `names`, `codes` and `java_hash`
are the pure parts beside it; the stubs that `make proto` generates from proto/ are importable as `hourglass.mq.v1`.
`grpc_options` and `values` are what both ends need of gRPC and protobuf.
`conf`, `properties_file`, `ignored_keys`, `config_source` and `command_line` are RocketMQ's configuration files and the
command line of the two servers.
"""
