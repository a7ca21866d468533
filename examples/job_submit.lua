-- SPDX-License-Identifier: Apache-2.0
-- Writes the options of a zero job into its comment, where `scontrol show job` prints them, and `sacct -o
-- comment` too if AccountingStoreFlags of slurm.conf has job_comment:
--
--	Comment=first run; zero by user: stage=2 offload=optimizer
--
-- Copy this file to job_submit.lua beside slurm.conf of the controller, add lua to JobSubmitPlugins and
-- run `scontrol reconfigure`, or call zero_comment() in the job_submit.lua that is there. It sees what
-- sbatch, salloc and srun were told by flags, not the options of an srun in a job.

-- What the plugin and Slurm pass to prolog and epilog: "ZERO=user" and one
-- "_SLURM_SPANK_OPTION_zero_zero_stage=2" for each flag. Returns nil for a job without zero.
function zero_options(job)
	local by, options = nil, {}
	for _, entry in pairs(job.spank_job_env or {}) do
		local name, value = entry:match("^_SLURM_SPANK_OPTION_zero_zero_([%w_]+)=(.*)$")
		if name then
			table.insert(options, name .. "=" .. value)
		end
		by = by or entry:match("^ZERO=(%w+)$")
	end
	table.sort(options)
	return by and "zero by " .. by .. ": " .. (#options > 0 and table.concat(options, " ") or "defaults")
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
