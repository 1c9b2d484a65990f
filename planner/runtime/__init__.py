"""A plan run with plain torch: DTensor placements, FSDP2, pipeline stages, checkpointing. Needs the extra ``torch``."""
