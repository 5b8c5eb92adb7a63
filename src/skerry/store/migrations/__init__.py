"""The schema's history, one file a step. A step that was released is never edited: a later one corrects it."""
