"""Tools for operators, on the store of a running or stopped broker. They never write to a store."""
