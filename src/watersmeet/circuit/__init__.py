"""The compiled form of views: the planner makes it, a database stores it, the kernel runs it.

Pure data with a JSON form. It imports no SQL front end, so workers need none.
"""
