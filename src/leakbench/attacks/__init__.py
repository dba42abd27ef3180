"""Attacks by name, and the batched engine that they share.

Gradient matching (``gradient_matching.py``) is one class made of parts (``objectives.py``, ``regularisers.py``,
``optimisers.py``), which the configuration picks by ``kind``; attacks of the literature are presets of it
(``presets.py``). ``engine.py`` minimises many independent trials at once; ``unknowns.py`` holds what a search varies.

A wrapper (``adaptive.py``) is an attack around another one that knows the defense: it changes the observations
(weights per coordinate, draws of the noise, repaired gradients) and hands them on, so wrappers stack. A message marks
the coordinates that it shows to be changed and states the variance of its noise, a defense declares the stack that
suits it, and the attack ``adaptive`` asks for that (``Attack.against``). What it becomes is a part of the job's
identity.

Reference attackers (``reference.py``) ignore the gradient, so they run once, beside the undefended one. An attack that
does not fit the model or the batch raises ``Infeasible``; an observation that is not finite or does not fit the model
is an error that names the record. ``released/`` holds attacks on trained models, ``restoration/`` and ``language/``
the networks that attackers train, ``sentences.py`` and ``discrete.py`` the search over sentences.
"""
