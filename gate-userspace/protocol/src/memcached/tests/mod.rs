mod answers;
mod datagrams;
mod requests;
