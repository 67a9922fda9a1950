"""The runtime: cuts input into epochs, runs the circuit over them, commits each as one step.

Only the commit log counts. An epoch's output, its state and the positions in its inputs are one commit, so all work
between two commits may be lost and repeated.
"""
