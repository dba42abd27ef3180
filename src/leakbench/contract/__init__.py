"""What a component of one's own has to keep to: small checks, each with a name and a sentence of what is wrong.

They compute for a few clients. A defense whose messages state no law has to be unbiased, or says why not (``biased``);
clients who share randomness say how many they are (``together``). Everything that is shipped passes.
"""
