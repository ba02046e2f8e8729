//! The definition of the command line, and its page in the documents.
