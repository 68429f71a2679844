"""The kernel: what a chain is, how it is framed, sealed and linked, and the clients of its servers.

It imports no other package of the house.
"""
