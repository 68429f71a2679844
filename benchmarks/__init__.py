"""One file per question; each prints a table and adds JSON lines to `benchmarks/results/`.

Every figure is a median of interleaved repeats within one run, beside what it is compared with:
absolute rates move by 20 to 40 % from run to run on a shared machine, ratios do not.
"""
