# leakbench: dataset x model x defense x attack jobs -> records -> the papers' figures and tables.
#
#   snakemake --cores all                                           everything of the configured scale
#   snakemake --cores 2 figures/smoke/optimal_defense/fig04.pdf     one figure, and only what it needs
#   snakemake --profile slurm                                       the full scale, on a cluster

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/jobs.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    scorecard,


with last_words():
    everything = flow.targets()


rule all:
    default_target: True
    input:
        everything,
