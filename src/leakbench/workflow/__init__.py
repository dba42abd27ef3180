"""The plan behind Snakemake's rules, and how its jobs start, share nodes and end.

- *One merge rule per experiment* stands between records and figures: figures that list thousands of records each would
  double the time to plan.
- *Undefended cells are an experiment of their own*, which figures read beside another: they are computed once.
- *``job`` is a parameter of the rules*, derived from wildcards alone: Snakemake ignores changes of parameters that
  depend on the output.
- *An unreadable record is moved aside while Snakemake plans*, by an input function of its rule: later would cost a
  second run.
- *Every run holds a lock of the kernel's* beside Snakemake's lock files. After a SIGKILL the files stay and the lock
  does not, so the next run knows that it is alone, removes them, and continues. (Where ``flock`` does not reach across
  hosts, as on some Lustre mounts, run from one login node.)
- *A job is forked from a warm process* of its run and host (``warm.py``): importing torch and what hangs on it costs
  as much as a small job computes. The process ends with its run, so later runs see edits of the code.
- *Small cells share a SLURM job* (``sharing.py``): the group of a job is a function of its path, by the seconds that
  ``leakbench cost`` expects. A group has no dependencies and holds either GPU cells or CPU cells, since a cell must
  not compute on another device because of its neighbours.
- *Jobs on a cluster leave a copy of their record*, since Snakemake deletes all outputs of a group that failed. A cell
  that failed once runs alone in the next run, so that it takes no other with it again.
- *Preempted jobs go back into the queue* (``preemption.py``): between Snakemake's SLURM plug-in and SLURM stands one
  function that does so where SLURM does not.
- *Snakemake's ``benchmark:`` and ``log:``* go to ``logs/``, under the record's path.
"""
