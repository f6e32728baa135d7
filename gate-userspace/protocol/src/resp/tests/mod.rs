mod extents;
mod refusals;
mod replies;
mod requests;
