"""The runtime: cuts input into epochs, runs the circuit over them, commits each as one step.

The commit log is the only truth. An epoch's output, its state and the positions in its inputs are one
commit, so whatever happens between two commits may be forgotten and done again.
"""
