# Jobs that write records: one rule per kind, one record per job. `leakbench run` explains the rest from the path.
# The parameter `job` is the job's identity: a record is made again when it changes. It is derived from the wildcards
# alone, because Snakemake ignores changes of parameters that depend on the output.

# By kind: memory in MB and minutes of a first attempt.
NEEDS = {
    "attack": (8000, 120),
    "leakage": (16000, 240),
    "train": (8000, 60),
    "federate": (16000, 240),
    "release": (16000, 120),
    "prior": (8000, 120),
    "language_model": (8000, 120),
    "fisher": (8000, 30),
    "calibrate": (8000, 30),
    "spectrum": (32000, 480),
    "membership": (16000, 120),
    "inventory": (2000, 10),
    "timing": (8000, 120),
    "round_timing": (8000, 60),
    "overhead": (8000, 60),
    "protection_cost": (8000, 60),
}

# A job that is no attack has its kind where attacks have their label, and before the label if it runs an attack too.
OTHERS = "|".join(kind for kind in NEEDS if kind != "attack")
ATTACKS = {"leakage": "leakage-[^/]+", "attack": f"(?!({OTHERS})/|leakage-)[^/]+"}

for kind, (memory, minutes) in NEEDS.items():

    rule:
        name:
            kind
        input:
            lambda wildcards: used_records(**wildcards),
        output:
            record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.json",
        log:
            "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.log",
        benchmark:
            "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.tsv"
        wildcard_constraints:
            attack=ATTACKS.get(kind, kind),
        group:
            shared_job
        threads: 1
        resources:
            mem_mb=lambda wildcards, attempt, memory=memory: memory * attempt,
            runtime=lambda wildcards, attempt, minutes=minutes: time_limit(minutes, wildcards, attempt),
        params:
            job=lambda wildcards: flow.job_digest(**wildcards),
        shell:
            "{flow.command} run {output.record:q} > {log:q} 2>&1"
