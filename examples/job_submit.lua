-- SPDX-License-Identifier: Apache-2.0
-- Writes the options of a zero job into its comment, where `scontrol show job` prints them, and `sacct -o
-- comment` too if AccountingStoreFlags of slurm.conf has job_comment:
--
--	Comment=first run; zero by user: stage=2 offload=optimizer
--
-- Copy this file to job_submit.lua beside slurm.conf of the controller, add lua to JobSubmitPlugins and
-- run `scontrol reconfigure`, or call zero_comment() in the job_submit.lua that is there. It sees what
-- sbatch, salloc and srun were told by flags, variables and files, not the options of an srun in a job.

-- The plugin passes "ZERO=user" and "ZERO_OPTIONS=stage=2 origins=stage:--zero-stage", with %20 for a
-- space in a value. A client can forge both, at any length, and the controller waits for this function: so
-- no pattern is matched against them whose time is more than linear, and little is kept of them. Returns
-- nil for a job without zero.
function zero_options(job)
	local by, options
	for _, entry in pairs(job.spank_job_env or {}) do
		by = by or entry:match("^ZERO=(%l%l%l%l)$")
		options = options or entry:match("^ZERO_OPTIONS=(.*)$")
	end
	options = " " .. (options or "")
	options = options:sub(2, (options:find(" origins=", 1, true) or 0) - 1)
	options = options:sub(1, 500):gsub("%c", "?")
	return by and "zero by " .. by .. ": " .. (options ~= "" and options or "defaults")
end

function zero_comment(job)
	local options = zero_options(job)
	if options then
		job.comment = (job.comment and job.comment ~= "") and job.comment .. "; " .. options or options
	end
end

function slurm_job_submit(job, partitions, uid)
	zero_comment(job)
	return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
	return slurm.SUCCESS
end
