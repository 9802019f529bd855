"""What other trainers call our settings: names that are taken as they are, and hints where the meaning is another.

TRL's GRPOConfig and peft's TrainerConfig, verl, and the systems of docs/coming_from.md.
"""

ALIASES = {
    **dict.fromkeys(["model", "model_name", "model_name_or_path"], "model_id"),
    **dict.fromkeys(["num_generations", "num_answers_per_question", "rollouts_per_prompt"], "group_size"),
    **dict.fromkeys(["max_new_tokens", "max_completion_length", "max_response_length"], "max_tokens"),
    **dict.fromkeys(["lr", "actor_lr"], "learning_rate"),
    **dict.fromkeys(["max_steps", "num_steps", "n_grpo_steps"], "steps"),
    **dict.fromkeys(["num_iterations", "ppo_epochs", "epochs_per_rollout_batch"], "passes_per_step"),
    **dict.fromkeys(["max_norm", "grad_clip", "gradient_clip"], "max_grad_norm"),
    **dict.fromkeys(["lora_r"], "lora_rank"),
    **dict.fromkeys(["save_steps", "save_freq", "checkpoint_interval"], "save_every"),
    **dict.fromkeys(["eval_steps", "test_freq", "val_every_steps"], "eval_every"),
    **dict.fromkeys(["gpu_memory_utilization", "vllm_gpu_memory_utilization"], "engine_memory_frac"),
    "beta": "kl_coef",
    "entropy_coeff": "entropy_coef",
    "epsilon_high": "clip_high",
    "delta": "clip_dual",
    "lr_scheduler_type": "schedule",
    "vllm_importance_sampling_cap": "importance_cap",
    "mask_truncated_completions": "mask_truncated",
    "torch_dtype": "dtype",
    "save_total_limit": "keep_checkpoints",
    "resume_from_checkpoint": "resume",
}
"""Settings by other names with the same meaning."""

_PROMPTS = "--prompts-per-step is the number of prompts of a step, --group-size that of the completions of each"
_WHOLE = "completions are sampled from the whole distribution, which the loss needs; see --temperature"
_LORA = "--lora-rank (0: all weights), --lora-alpha"
_JUDGE = "--judge-model and --judge-base-url"
_STEPS = "--steps, those of the whole run"

HINTS = {
    **dict.fromkeys(["epochs", "num_epochs", "epoch", "steps_per_epoch", "num_train_epochs", "total_epochs"], _STEPS),
    **dict.fromkeys(["iterations", "num_iters"], _STEPS),
    **dict.fromkeys(
        [
            *("batch_size", "train_batch_size", "per_device_train_batch_size", "rollout_batch_size"),
            *("gradient_accumulation_steps", "generation_batch_size", "steps_per_generation", "mini_batch_size"),
        ],
        f"{_PROMPTS}; --micro-batch-tokens is memory alone",
    ),
    **dict.fromkeys(["n_samples", "num_samples", "n"], _PROMPTS),
    **dict.fromkeys(["top_p", "top_k", "min_p"], _WHOLE),
    **dict.fromkeys(["min_tokens", "sampling_min_tokens"], "no shortest length, which would change the distribution"),
    **dict.fromkeys(["dataset", "dataset_name", "train_files", "train_file"], "--task, and --data-path for a file"),
    **dict.fromkeys(["output_dir", "default_local_dir"], "--runs-dir and --checkpoints-dir"),
    "hub_model_id": "--push-to-hub user/name",
    "hub_private_repo": "--push-to-hub user/name, of a repository that you created as private before",
    **dict.fromkeys(["environment_factory"], "--task path/to/file.py:CLASS: docs/tools.md"),
    "tools": "--tasks TASK+FILE.py:FUNCTION, as a run names its task: docs/tools.md",
    **dict.fromkeys(["rollout_func", "agent_func_path"], "an episode of a task of your own: docs/tasks.md"),
    **dict.fromkeys(["max_tool_calling_iterations", "max_assistant_turns"], "--tools.calls of an episode"),
    **dict.fromkeys(["mcp", "mcp_servers", "tool_config_path"], '--tools "mcp:COMMAND", or FILE.py:NAME'),
    **dict.fromkeys(
        [
            *("async_generation", "async_training", "async_train", "async_rollout", "staleness", "max_staleness"),
            *("staleness_threshold", "max_async_level", "one_step_off_policy"),
        ],
        "--overlap samples one step ahead, by --engine vllm-server",
    ),
    **dict.fromkeys(["turn_level_reward", "turn_level_rewards", "step_advantage_w"], "--turn-credit turn"),
    **dict.fromkeys(["gamma", "gae_lambda", "lam"], "there is no value critic and no discount; see --turn-credit"),
    **dict.fromkeys(["report_to", "wandb_project", "wandb_entity"], "--logger wandb (WANDB_PROJECT, WANDB_ENTITY)"),
    **dict.fromkeys(["use_vllm", "vllm_mode"], "--engine vllm"),
    **dict.fromkeys(["loss_type", "advantage_type", "adv_estimator"], "--algorithm"),
    "code.mode": "programs that are rewarded for running are --task code_execution",
    "scale_rewards": "--algorithm dr_grpo divides by no standard deviation",
    **dict.fromkeys(["epsilon", "cliprange", "clip_ratio", "clip_eps", "clip_range"], "--clip-low and --clip-high"),
    **dict.fromkeys(["warmup_ratio", "lr_warmup_steps_ratio"], "--warmup-steps, a number of steps"),
    **dict.fromkeys(["bf16", "fp16", "tf32"], "--dtype bfloat16 or float32"),
    **dict.fromkeys(["log_completions", "num_completions_to_print"], "--rollouts-every writes them to the run"),
    **dict.fromkeys(["gradient_checkpointing"], "--activation-checkpointing always"),
    **dict.fromkeys(["max_prompt_length"], "prompts are never cut; those that the context has no room for are refused"),
    **dict.fromkeys(["max_seq_length", "max_length", "max_model_len"], "--max-tokens, or --engine-context-length"),
    **dict.fromkeys(
        ["reward_weights", "reward_funcs"], "a file with `rewards = [(function, weight), ...]`: docs/tasks.md"
    ),
    **dict.fromkeys(["use_peft", "lora", "use_lora"], _LORA),
    "lora_dropout": "no dropout: log-probabilities would not be those of the sampled policy",
    "importance_sampling_level": "--algorithm gspo has one ratio for a sequence",
    **dict.fromkeys(["optim", "use_8bit_adam"], "--optimizer adamw8bit"),
    **dict.fromkeys(["attn_implementation", "flash_attention"], "chosen by the device"),
    **dict.fromkeys(["logging_steps", "log_every"], "every step is logged"),
    **dict.fromkeys(["eval_strategy", "do_eval"], "--eval-every"),
    **dict.fromkeys(["num_eval_examples", "eval_rows", "val_size"], "--eval-examples"),
    **dict.fromkeys(["temperature_scaling"], "--target-reward-std, with --min-temperature and --max-temperature"),
    **dict.fromkeys(["skip_unfinished_episodes"], "--mask-truncated"),
    **dict.fromkeys(["overlong"], "--mask-truncated, or --overlong-buffer"),
    **dict.fromkeys(["qwen_endpoint", "qwen_model"], _JUDGE),
    **dict.fromkeys(["value_coef", "value_coeff", "critic_lr"], "there is no value critic: docs/models.md"),
    **dict.fromkeys(["checkpoint"], "--model-id starts from its weights, --resume continues its run"),
    **dict.fromkeys(["vllm_tensor_parallel_size"], "--engine vllm-server, whose servers split a model"),
    **dict.fromkeys(["deepspeed", "fsdp"], "--sharding full"),
    **dict.fromkeys(["ppo_mini_batch_size"], "--minibatches-per-pass, a number of parts"),
    **dict.fromkeys(["ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size"], "--micro-batch-tokens"),
    **dict.fromkeys(["loss_agg_mode"], "--algorithm dapo is token-mean, grpo is seq-mean-token-mean"),
    **dict.fromkeys(["kl_loss_type", "kl_penalty"], "--kl-estimator"),
    **dict.fromkeys(["clip_ratio_low"], "--clip-low"),
    **dict.fromkeys(["clip_ratio_high"], "--clip-high"),
    **dict.fromkeys(["clip_ratio_c"], "--clip-dual, of --algorithm dual_clip"),
    **dict.fromkeys(
        ["true", "false", "yes", "no", "on", "off"], "a switch takes no value: --preflight, or --no-preflight"
    ),
}
"""What to say of names that are no settings here, or that mean something else."""
