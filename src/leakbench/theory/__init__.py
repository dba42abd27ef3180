"""Bounds, optimal mechanisms and accountants as pure functions of arrays.

Of Chen, Gürsoy and Lei (2024): ``fisher`` (what a message tells about the input), ``cramer_rao`` (the error that every
attacker has), ``utility`` (what the message is worth), ``noise_budget`` and ``pruning_budget`` (what tells least at a
given utility), ``optimal_noise`` (the same for one gradient, as defenses use it), ``probes`` (estimated sensitivities).

Of Tan et al. (2024): ``capacity`` (what a Gaussian channel lets through, and the noise for a given amount),
``personalized`` (the same for weighted attributes), ``toy_channel`` (noise on parameters against noise on data),
``reconstruction_bound`` (the error that every attacker has), ``dp_capacity`` (DP-SGD as a channel, epsilon),
``compression`` (dropping as noise).
"""
