# Jobs that write records: one rule per kind, one record per job. `leakbench run` explains the rest from the path.
# Each kind states what it needs (src/leakbench/jobs/base.py), also a plug-in's or a paper's own: nothing is listed here.
# The parameter `job` is the job's identity: a record is made again when it changes. It is derived from the wildcards
# alone, because Snakemake ignores changes of parameters that depend on the output.

for kind in flow.kinds():

    rule:
        name:
            kind.name
        input:
            lambda wildcards: used_records(**wildcards),
        output:
            record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.json",
        log:
            "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.log",
        benchmark:
            "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.tsv"
        wildcard_constraints:
            attack=kind.folders,
        group:
            shared_job
        threads: 1
        resources:
            **kind.device(offered_resources()),
            mem_mb=lambda wildcards, attempt, kind=kind: kind.memory_mb * attempt,
            runtime=lambda wildcards, attempt, kind=kind: time_limit(kind.minutes, wildcards, attempt),
        params:
            job=lambda wildcards: flow.job_digest(**wildcards),
        shell:
            "{flow.command} run {output.record:q} > {log:q} 2>&1"
