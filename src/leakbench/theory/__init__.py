"""Bounds, optimal mechanisms and accountants as pure functions of arrays; a paper's folder holds what it alone uses.

Of Chen, Gürsoy and Lei (2024): ``fisher`` (information of a message about the input), ``utility`` (of a message),
``optimal_noise`` (noise and pruning of least information at a given utility).

Of Tan et al. (2024): ``capacity`` (of a Gaussian channel, and the noise for a given capacity), ``personalized`` (the
same for weighted attributes), ``reconstruction_bound`` (on the error of every attacker), ``dp_capacity`` (DP-SGD as a
channel, epsilon).

Of Zhang et al. (2024): ``aggregate_dp`` (guarantees of a sum of updates), ``renyi_curves`` (Rényi divergence to
epsilon), ``dp_composition`` (many rounds), ``noise_calibration`` (the least noise for a total epsilon),
``water_filling`` (noise that lifts a covariance to a floor), ``span`` (records without privacy).

Of Zhang, Kang et al. (2023): ``leakage_surrogate`` (leakage of beliefs, and its bounds), ``distortion`` (total
variation of four mechanisms), ``protection_parameters`` (the least distortion that meets a budget).
"""
