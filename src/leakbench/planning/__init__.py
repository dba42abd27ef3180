"""Configuration to jobs, and paths to jobs: all that the project would compute, without computing anything.

A path is ``results/<scale>/<paper>/<experiment>/<dataset>/<model>/<defense>/<attack>/<part>.json``; its parts are
labels of variants. ``schemas.py`` says what the files may hold, ``layers.py`` lays them over each other, ``scales.py``
in which order (see ``config/README.md``), ``mistakes.py`` explains what is wrong in them, ``variants.py`` makes
components of labels, ``paper_plan.py`` and ``plan.py`` make jobs of grids, ``project.py`` finds the job of a path,
``recorded.py`` that of a record.

``compare`` puts a defense into every experiment that compares mechanisms, under a label of its own; nothing else
changes, so no finished job runs again. Left out are experiments that hold only ``none``, or settings of one mechanism;
kinds of job that say nothing of what the defense acts on; sentences, for defenses of images; protocols that sweep a
field of the same name.
"""
