"""Bounds, optimal mechanisms and accountants as pure functions of arrays.

Of Chen, Gürsoy and Lei (2024): ``fisher`` (what a message tells about the input), ``cramer_rao`` (the error that every
attacker has), ``utility`` (what the message is worth), ``noise_budget`` and ``pruning_budget`` (what tells least at a
given utility), ``optimal_noise`` (the same for one gradient, as defenses use it), ``probes`` (estimated sensitivities).

Of Tan et al. (2024): ``capacity`` (what a Gaussian channel lets through, and the noise for a given amount),
``personalized`` (the same for weighted attributes), ``toy_channel`` (noise on parameters against noise on data),
``reconstruction_bound`` (the error that every attacker has), ``dp_capacity`` (DP-SGD as a channel, epsilon),
``compression`` (dropping as noise).

Of Zhang et al. (2024): ``aggregate_dp`` (what a sum of updates guarantees), ``renyi_curves`` (Rényi divergence to
epsilon), ``dp_composition`` (many rounds), ``noise_calibration`` (the least noise for a total epsilon),
``water_filling`` (noise that lifts a covariance to a floor), ``span`` (where there is no privacy),
``gaussian_divergence`` (the exact referee).

Of Zhang, Kang et al. (2023): ``leakage_surrogate`` (leakage of beliefs, and its bounds), ``distortion`` (total
variation of four mechanisms), ``protection_parameters`` (the least distortion that meets a budget),
``leakage_estimation`` (constants from counted recoveries).
"""
