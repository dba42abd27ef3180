"""One file per kind of job: parameters in, record out."""
