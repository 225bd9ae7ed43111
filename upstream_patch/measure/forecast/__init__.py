"""A prediction of the kernel's times on a GPU that nobody here has run, from its machine code and stated assumptions.

Nothing in here is a fact: facts derive from records, and neither drafts nor README may read this room (a host test
checks the imports).
"""
