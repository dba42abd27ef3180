"""Kinds of job that several papers use, one file each. Papers keep their own in their folder.

All settings that a job sweeps are computed side by side, since for an attacker another noise scale is only another
observation of the same model: one start-up, one batch. A field of the protocol may be swept too; the job then computes
one combination after the other, unless its kind shares work among them (numbers of steps are snapshots of one
training), and replicates carry the field in their setting.

- ``attack``: clients send one defended update, the server reconstructs. The protocol's axes are ``batch_norm``
  (running statistics, or those of the batch), ``local`` (one gradient, or the FedAvg update over the learning rate,
  which takes the gradient's place everywhere) and ``epoch`` (how long the model was trained before). With ``users``,
  the server sees the mean of several users' updates and reconstructs the samples of all (``sums.py``). ``subjects.py``
  holds what differs between images and sentences.
- ``train`` takes one step per round, with an optimiser at the server; ``federate`` is federated averaging, whose
  clients train locally for a round. A defense sees the update over the local rate where the gradient stands.
- ``release`` trains one client under every setting of a defense, and attacks the trained model; ``shadows`` trains the
  undefended models by which the attack LiRA judges all released ones of a seed, model and data set.
- ``membership`` asks whether a record is in a sum of updates, for many numbers of users at once.
- ``prior`` and ``language_model`` train what attackers may be granted.
- ``fisher``, ``inventory``, ``overhead``: information about the input, parameter counts, cost of a defense's step.

A kind may read records of another one: ``reads`` names the kind, and the field of the protocol that names the
experiment. The plan finds that job on the same data set (``Job.uses``), of several that of the same model and seeds;
its digest becomes a part of the reader's identity, and the runner passes its tensors on (``Job.kept``).

Every kind and every attack counts its ``effort`` from the plan alone (samples that pass through the model, and
sequential steps); ``leakbench cost`` multiplies it by measured rates. Metrics in seconds say that they are not
reproducible, and fingerprints leave them out. All methods of a comparison of times run in one job, in turns.
"""
