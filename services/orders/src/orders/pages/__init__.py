"""The shop's pages: rendered here, one style sheet and one small script beside them, no build step.

Everything works without the script, but the clock that runs down and the page that changes by itself. Money is whole
minor units up to the text that a person reads.
"""
