"""Federated learning: the client's step, the message on the wire, the server's average.

- ``step.py``: gradients ``[n, d]``, per-sample gradients and input sensitivities (``sensitivity.py``,
  ``features.py``), each computed at the first use and shared by all settings and defenses of a step.
- ``message.py``: exactly what travels, with its size in bits and its law; ``lattice.py`` and ``fixed_point.py`` code
  it.
- ``updates.py``: the loop of every training, its state and its hooks; ``training.py``: whole runs, side by side.
- ``secure_aggregation.py``: every run goes through the whole protocol at every step, with fresh keys, and the server
  gets the decoded sum of those who stay. Records do not depend on the keys. Dropouts are drawn from a stream of the
  client and the step, equal for all settings; a run ends ``infeasible`` where fewer stay than the threshold, or a
  value may overflow the ring (``ring.py``, ``secret_sharing.py``). Defenses whose server needs individual messages are
  rejected.
- ``paillier.py``: the server adds integers that it cannot read. Keys are derived from named streams, so records
  repeat.
"""
