print("/root/.cache/troika/torch-2.11.0/torch")
