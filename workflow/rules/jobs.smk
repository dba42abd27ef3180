# Jobs that write records: one rule per kind, one record per job. `leakbench run` explains the rest from the path.
# The parameter `job` is the job's identity: a record is made again when it changes. It is derived from the wildcards
# alone, because Snakemake ignores changes of parameters that depend on the output.


rule attack:
    input:
        lambda wildcards: nothing_but_readable(**wildcards),
    output:
        record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.json",
    log:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/{attack}/{part}.tsv"
    wildcard_constraints:
        attack="(?!(train|release|fisher|calibrate|inventory|timing)/)[^/]+",
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=lambda wildcards, attempt: 120 * attempt,
    params:
        job=lambda wildcards: flow.job_digest(**wildcards),
    shell:
        "{flow.command} run {output.record:q} > {log:q} 2>&1"


rule train:
    input:
        lambda wildcards: nothing_but_readable(attack="train", **wildcards),
    output:
        record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/train/{part}.json",
    log:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/train/{part}.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/train/{part}.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
    params:
        job=lambda wildcards: flow.job_digest(attack="train", **wildcards),
    shell:
        "{flow.command} run {output.record:q} > {log:q} 2>&1"


rule release:
    input:
        lambda wildcards: nothing_but_readable(attack="release", **wildcards),
    output:
        record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/release/{part}.json",
    log:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/release/{part}.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/release/{part}.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 16000 * attempt,
        runtime=lambda wildcards, attempt: 120 * attempt,
    params:
        job=lambda wildcards: flow.job_digest(attack="release", **wildcards),
    shell:
        "{flow.command} run {output.record:q} > {log:q} 2>&1"


rule fisher:
    input:
        lambda wildcards: nothing_but_readable(attack="fisher", **wildcards),
    output:
        record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/fisher/{part}.json",
    log:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/fisher/{part}.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/fisher/{part}.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=lambda wildcards, attempt: 30 * attempt,
    params:
        job=lambda wildcards: flow.job_digest(attack="fisher", **wildcards),
    shell:
        "{flow.command} run {output.record:q} > {log:q} 2>&1"


rule calibrate:
    input:
        lambda wildcards: nothing_but_readable(attack="calibrate", **wildcards),
    output:
        record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/calibrate/{part}.json",
    log:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/calibrate/{part}.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/calibrate/{part}.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=lambda wildcards, attempt: 30 * attempt,
    params:
        job=lambda wildcards: flow.job_digest(attack="calibrate", **wildcards),
    shell:
        "{flow.command} run {output.record:q} > {log:q} 2>&1"


rule inventory:
    input:
        lambda wildcards: nothing_but_readable(attack="inventory", **wildcards),
    output:
        record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/inventory/{part}.json",
    log:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/inventory/{part}.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/inventory/{part}.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
    params:
        job=lambda wildcards: flow.job_digest(attack="inventory", **wildcards),
    shell:
        "{flow.command} run {output.record:q} > {log:q} 2>&1"


rule timing:
    input:
        lambda wildcards: nothing_but_readable(attack="timing", **wildcards),
    output:
        record="results/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/timing/{part}.json",
    log:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/timing/{part}.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/{dataset}/{model}/{defense}/timing/{part}.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=lambda wildcards, attempt: 120 * attempt,
    params:
        job=lambda wildcards: flow.job_digest(attack="timing", **wildcards),
    shell:
        "{flow.command} run {output.record:q} > {log:q} 2>&1"
