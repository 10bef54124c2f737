/* The control groups of a jail, whoever makes them. */
#pragma once

#include "jail/jail.h"

/* Makes the groups that are wanted; what cannot be had is noted, not an error. */
void groups_make(const struct jail *jail, struct jail_process *process);

/*
 * In a login session systemd is asked for what groups_make could not make. The child waits, and
 * still has the user's ID: systemd moves no process of another.
 */
void groups_ask_systemd(const struct jail *jail, struct jail_process *process);

/* Notes that the process could not join what was made for it. */
void groups_miss(struct jail_process *process, int rc);
