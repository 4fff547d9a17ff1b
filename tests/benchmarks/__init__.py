"""Measures what is promised, on this machine: `python -m tests.benchmarks [NAME …]`.

None of it belongs to the tests: a machine that is busy with other work makes every figure wide.
"""
