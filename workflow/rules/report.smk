# From records to what people read. One tidy table per experiment stands between records and figures.


rule merge:
    input:
        lambda wildcards: flow.records(**wildcards),
    output:
        table="results/{scale}/{paper}/{experiment}/records.parquet",
        missing="results/{scale}/{paper}/{experiment}/missing.csv",
        gates="results/{scale}/{paper}/{experiment}/gates.csv",
        adaptive="results/{scale}/{paper}/{experiment}/adaptive.csv",
        provenance="results/{scale}/{paper}/{experiment}/provenance.csv",
    log:
        "logs/{scale}/{paper}/{experiment}/merge.log",
    benchmark:
        "logs/{scale}/{paper}/{experiment}/merge.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
    params:
        code=lambda wildcards: flow.merging_digest(**wildcards),
    shell:
        "{flow.command} merge {output.table:q} > {log:q} 2>&1"


rule draw:
    input:
        lambda wildcards: flow.tables_of("figures/{scale}/{paper}/{figure}.png".format(**wildcards)),
    output:
        pdf=report(
            "figures/{scale}/{paper}/{figure}.pdf",
            caption="../report/artifact.rst",
            category="{paper}",
            labels={"artifact": "{figure}", "scale": "{scale}"},
        ),
        png="figures/{scale}/{paper}/{figure}.png",
        numbers="figures/{scale}/{paper}/{figure}.csv",
    log:
        "logs/{scale}/{paper}/{figure}.log",
    benchmark:
        "logs/{scale}/{paper}/{figure}.tsv"
    wildcard_constraints:
        figure="fig[^/.]*",
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
    params:
        code=lambda wildcards: flow.drawing_digest(wildcards.scale, wildcards.paper),
    shell:
        "{flow.command} draw {output.png:q} > {log:q} 2>&1"


rule tabulate:
    input:
        lambda wildcards: flow.tables_of("figures/{scale}/{paper}/{table}.csv".format(**wildcards)),
    output:
        csv=report(
            "figures/{scale}/{paper}/{table}.csv",
            caption="../report/artifact.rst",
            category="{paper}",
            labels={"artifact": "{table}", "scale": "{scale}"},
        ),
        markdown="figures/{scale}/{paper}/{table}.md",
        latex="figures/{scale}/{paper}/{table}.tex",
    log:
        "logs/{scale}/{paper}/{table}.log",
    benchmark:
        "logs/{scale}/{paper}/{table}.tsv"
    wildcard_constraints:
        table="table[^/.]*",
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
    params:
        code=lambda wildcards: flow.drawing_digest(wildcards.scale, wildcards.paper),
    shell:
        "{flow.command} draw {output.csv:q} > {log:q} 2>&1"


rule judge:
    input:
        lambda wildcards: flow.tables_of_claims(**wildcards),
    output:
        csv=report(
            "figures/{scale}/{paper}/claims.csv",
            caption="../report/claims.rst",
            category="{paper}",
            labels={"artifact": "claims", "scale": "{scale}"},
        ),
        markdown="figures/{scale}/{paper}/claims.md",
        latex="figures/{scale}/{paper}/claims.tex",
    log:
        "logs/{scale}/{paper}/claims.log",
    benchmark:
        "logs/{scale}/{paper}/claims.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 4000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
    params:
        code=lambda wildcards: flow.judging_digest(**wildcards),
    shell:
        "{flow.command} judge {output.csv:q} > {log:q} 2>&1"


rule scorecard:
    input:
        lambda wildcards: flow.scorecard_inputs(wildcards.scale),
    output:
        "results/{scale}/scorecard.html",
    log:
        "logs/{scale}/scorecard.log",
    benchmark:
        "logs/{scale}/scorecard.tsv"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
    params:
        code=lambda wildcards: flow.scorecard_digest(wildcards.scale),
    shell:
        "{flow.command} scorecard {output:q} > {log:q} 2>&1"
