"""Run a sweep through dask-jobqueue: jobs of a SLURM cluster become the workers of a dask cluster.

    python sweeps/slurm/run_on_slurm.py sweeps/learning_rate_5_1_2.yaml --jobs 8 --queue short

It needs `pip install 'fml_tf[slurm]'`, and a shared disk for the repository and the sweep's folder. Interrupted, call
again: only what is missing is run.
"""

import argparse
import pathlib
import sys

import dask_jobqueue

from fml_tf import results, sweeps


def cluster(given):
    """Return a cluster whose jobs are workers of one run at a time."""
    return dask_jobqueue.SLURMCluster(
        queue=given.queue,
        account=given.account,
        cores=1,  # runs at a time: dask's word for a worker's threads
        job_cpu=given.cores,
        processes=1,
        memory=given.memory,
        walltime=given.walltime,
        job_name="fml-sweep",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path, help="the sweep")
    parser.add_argument("--out", help="folder of the sweep, by default runs/<name of the file>")
    parser.add_argument("--jobs", type=int, default=4, help="jobs, each of which does one run at a time")
    parser.add_argument("--cores", type=int, default=4, help="of each job, all for its run")
    parser.add_argument("--memory", default="8GB", help="of each job")
    parser.add_argument("--walltime", default="02:00:00", help="of each job: longer than a run takes")
    parser.add_argument("--queue", help="partition")
    parser.add_argument("--account")
    parser.add_argument("--show", action="store_true", help="print the job's script and do nothing")
    given = parser.parse_args()
    sweep = sweeps.read(given.file)
    folder = given.out or results.run_path(given.file.stem)
    with cluster(given) as jobs:
        if given.show:
            print(jobs.job_script())
            return
        jobs.scale(jobs=given.jobs)
        rows = sweeps.run(sweep, folder, dask=jobs.scheduler_address, workers=given.jobs, threads=given.cores)
    sys.exit(any(row["state"] != "done" for row in rows))


if __name__ == "__main__":
    main()
