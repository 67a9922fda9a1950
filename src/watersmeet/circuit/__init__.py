"""The compiled form of views: what the planner makes, a database stores and the kernel runs.

Pure data that survives as JSON. It imports no SQL front-end, so workers need none.
"""
