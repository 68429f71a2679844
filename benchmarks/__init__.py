"""Eight questions about speed; each repeat of each arm is saved, and one report is made of them.

Every figure is a median of interleaved repeats within one run, beside what it is compared with:
absolute rates move by 20 to 40 % from run to run on a shared machine, ratios do not.
"""
