// A translation unit for the precompiled headers to hang on.
