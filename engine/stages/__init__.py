"""The stages of a job, one file each: encode_prompt, denoise, decode_audio, decode_video."""
