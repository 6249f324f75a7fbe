"""The transfer of the course (mechanism X10): bank A debits 10,000 if and only if bank B hears that it has to credit
it.

Two banks with a database each, and nothing between them but a queue. A sends "credit B" as a half message, debits in
its local transaction, and the message is delivered exactly if that was committed; B credits once, however often it
comes. No transaction spans both, and no step of either is undone.
"""
