"""The compiled form of views, which the planner makes, a database stores and the kernel runs.

It is pure data with a JSON form. It imports no SQL front end, so workers don't need one.
"""
