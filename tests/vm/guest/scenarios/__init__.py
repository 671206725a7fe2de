# SPDX-License-Identifier: Apache-2.0
"""All scenarios, in the order in which the guest runs them: those of one mode of the daemon together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.vm.guest.node import Mode, Node
from tests.vm.guest.scenarios import (
    binding,
    bursts,
    byhand,
    errors,
    groups,
    holders,
    mediated,
    passthrough,
    plugging,
    readiness,
    usb,
    virtual,
)


class Scenario(NamedTuple):
    """What is shown, and how the daemon runs meanwhile."""

    mode: Mode
    run: Callable[[Node], Awaitable[None]]

    @property
    def name(self) -> str:
        """The name of its function: a sentence."""
        return self.run.__name__


_BY_MODE: tuple[tuple[Mode, tuple[Callable[[Node], Awaitable[None]], ...]], ...] = (
    (
        Mode.HOST,
        (
            binding.an_unbind_and_a_bind_reach_the_kubelet_within_a_second,
            binding.a_host_driver_makes_the_device_unhealthy_within_a_second,
            binding.a_removed_function_leaves_the_list_and_a_rescan_brings_it_back,
            plugging.an_idle_device_that_is_unplugged_leaves_the_list_and_comes_back_when_plugged,
            plugging.a_card_unplugged_from_a_virtual_machine_stays_listed_until_its_pod_has_gone,
            groups.viability_is_what_the_kernel_says_in_every_combination,
            groups.a_port_in_the_group_does_not_hinder_it,
            readiness.a_check_names_what_blocks_a_group,
            virtual.virtual_functions_come_and_go_with_their_number,
            virtual.virtual_functions_of_one_on_vfio_are_not_given_as_the_kernel_wants_a_token,
            virtual.nothing_is_written_to_a_function_that_came_back_without_its_virtual_functions,
            bursts.two_thousand_events_fit_into_the_socket_and_no_bind_is_missed,
            errors.a_recovered_error_leaves_the_device_healthy,
            errors.a_fatal_error_makes_the_device_unhealthy_over_a_restart_until_it_is_bound_again,
            errors.a_device_without_power_is_refused_at_allocate_until_it_is_bound_anew,
            holders.a_device_that_is_open_outside_is_refused_at_allocate,
            holders.an_unbind_under_a_holder_is_known_from_events_when_the_kernel_tells,
            holders.a_virtual_machine_gets_the_device_and_its_siblings_are_marked,
            binding.the_list_follows_when_vfio_is_unloaded_and_loaded_again,
            mediated.a_parent_that_appears_is_filled_and_listed_at_once,
            mediated.an_instance_that_is_open_keeps_its_card_from_a_new_type_until_it_is_closed,
            mediated.an_instance_of_a_pod_outlives_a_new_list_of_types_until_the_pod_has_gone,
            mediated.room_that_others_take_meanwhile_is_no_failure_and_their_instances_stay,
            mediated.a_card_with_a_foreign_instance_is_left_as_it_is,
            mediated.a_parent_driver_that_is_loaded_again_gets_the_same_instances,
            usb.a_stick_that_is_pulled_from_a_machine_stays_listed_and_comes_back_by_another_number,
            usb.a_stick_that_was_mounted_a_moment_ago_is_refused_at_allocate,
            usb.the_keyboard_of_the_console_is_the_hosts,
        ),
    ),
    (
        Mode.POD,
        (
            binding.changes_are_seen_from_a_network_namespace_of_its_own,
            bursts.events_that_overflow_the_socket_lose_no_bind,
        ),
    ),
    (
        Mode.POLL,
        (
            holders.a_device_that_is_open_outside_is_unhealthy_until_it_is_closed,
            errors.a_pod_is_told_that_its_device_has_lost_its_power,
            errors.looks_wake_no_sleeping_device,
            passthrough.a_rule_binds_a_function_and_gives_its_driver_back,
            passthrough.a_group_is_bound_whole,
            passthrough.a_function_that_was_removed_and_found_again_is_bound_again,
            passthrough.a_function_that_is_open_is_given_back_when_it_is_closed,
            passthrough.a_network_interface_with_an_address_is_left_to_the_host,
            passthrough.a_group_with_a_mounted_disk_is_left_to_the_host,
            passthrough.a_card_that_is_plugged_is_bound_by_its_rule,
            passthrough.a_virtual_machine_that_runs_keeps_what_no_rule_wants_any_more,
            passthrough.an_unbind_that_the_kernel_does_not_end_is_told_and_holds_up_nothing_else,
            passthrough.a_daemon_that_is_killed_while_an_unbind_sleeps_is_replaced_at_once,
            passthrough.virtual_functions_for_vfio_are_never_on_the_hosts_driver,
            byhand.a_daemon_binds_and_gives_back_what_it_is_asked_for_by_hand,
            byhand.a_daemon_binds_the_group_of_what_a_name_fits,
            byhand.a_hand_is_refused_a_group_with_a_mounted_disk,
            byhand.a_verb_binds_and_gives_back_without_a_daemon,
            holders.an_unbind_that_waits_for_the_holder_shows_as_going_away,
            plugging.an_unplug_that_waits_for_the_holder_shows_as_going_away,
            virtual.virtual_functions_that_cannot_go_stop_no_scan,
            mediated.an_instance_that_is_removed_by_hand_while_open_is_made_again_once_it_is_closed,
            usb.a_stick_is_qemus_until_its_pod_has_let_go,
            usb.a_mounted_stick_is_the_hosts,
        ),
    ),
    (Mode.USERS, (binding.without_events_changes_are_found_by_asking,)),
)

ALL: tuple[Scenario, ...] = tuple(Scenario(mode, run) for mode, runs in _BY_MODE for run in runs)
