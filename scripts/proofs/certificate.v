(* A certificate of `flashsim prove`, checked here. Its numbers are binary, so that large ones can be computed with. *)

From Coq Require Import NArith Nnat Lia.
Set Warnings "-notation-overridden".
From mathcomp Require Import all_ssreflect.
From Proofs Require Import model forward.

(* The most terms of a phase that touches Y words. *)
Definition most_terms (d Y : N) : N := N.max (N.max (Y * Y / (16 * d)) (N.sqrt (Y * Y * Y / 27))) 1.

Definition valid (pairs d d_v M Y n last bound : N) : bool :=
  ((0 <? d) && (M <? Y) && (2 <=? n)
   && ((n - 1) * most_terms d Y + (if last <=? 1 then 0 else most_terms d (M + (last - 1))) <? pairs * d_v)
   && (bound <=? Y + (n - 2) * (Y - M) + last))%num.

Lemma below {a b} : (a < b)%num -> (N.to_nat a < N.to_nat b)%coq_nat. Proof. lia. Qed.

Lemma most_is_most d Y : (0 < d)%num -> at_most (N.to_nat d) (N.to_nat Y) (N.to_nat (most_terms d Y)).
Proof.
move=> d_positive; set g := most_terms d Y.
have wide : (Y * Y / (16 * d) <= g)%num by rewrite /g /most_terms; lia.
have deep : (N.sqrt (Y * Y * Y / 27) <= g)%num by rewrite /g /most_terms; lia.
have {}wide : (Y * Y < 16 * d * (g + 1))%num.
  have := N.mul_succ_div_gt (Y * Y) (16 * d); nia.
have {}deep : (Y * Y * Y < 27 * ((g + 1) * (g + 1)))%num.
  have [_ root] := N.sqrt_spec (Y * Y * Y / 27) (N.le_0_l _).
  have := N.mul_succ_div_gt (Y * Y * Y) 27; nia.
have {}wide := below wide; have {}deep := below deep.
rewrite !N2Nat.inj_mul !N2Nat.inj_add in wide deep.
by split; apply/ltP; rewrite -?multE; nia.
Qed.

Theorem certified (N_q N_k pairs d d_v M Y n last bound : N) (allowed : {set 'I_(N.to_nat N_q) * 'I_(N.to_nat N_k)})
    (steps : run (N.to_nat N_q) (N.to_nat N_k) (N.to_nat d) (N.to_nat d_v)) :
  valid pairs d d_v M Y n last bound -> #|allowed| = N.to_nat pairs -> attention (N.to_nat M) allowed steps ->
  (bound <= N.of_nat (accesses steps))%num.
Proof.
case/andP=> /andP[/andP[/andP[width more] two] terms] least size legal.
have {}width := proj1 (N.ltb_lt _ _) width; have {}more := proj1 (N.ltb_lt _ _) more.
have {}two := proj1 (N.leb_le _ _) two; have {}terms := below (proj1 (N.ltb_lt _ _) terms).
have {}least := proj1 (N.leb_le _ _) least.
have most := most_is_most d Y width.
have more' : N.to_nat M < N.to_nat Y by apply/ltP; lia.
have two' : 2 <= N.to_nat n by apply/leP; lia.
have phases : N.to_nat (Y + (n - 2) * (Y - M))%num = N.to_nat Y + (N.to_nat n - 2) * (N.to_nat Y - N.to_nat M).
  by rewrite N2Nat.inj_add N2Nat.inj_mul !N2Nat.inj_sub.
move: terms; rewrite N2Nat.inj_add !N2Nat.inj_mul N2Nat.inj_sub -size => terms.
have {}terms x : x = N.to_nat (if (last <=? 1)%num then 0%num else most_terms d (M + (last - 1))) ->
    (N.to_nat n).-1 * N.to_nat (most_terms d Y) + x < #|allowed| * N.to_nat d_v.
  by move=> ->; rewrite -subn1; apply/ltP; exact: terms.
case: (N.leb_spec last 1) terms => [one /(_ _ erefl)|many /(_ _ erefl)].
  rewrite addn0 => terms; have := phases_bound legal more' two' most terms.
  by rewrite -phases => /ltP; lia.
move=> terms; have most' := most_is_most d (M + (last - 1)) width.
rewrite N2Nat.inj_add in most'.
have := last_phase legal more' two' most most' terms.
by rewrite -phases => /ltP; rewrite -plusE; lia.
Qed.

Corollary certified_all (N_q N_k d d_v M Y n last bound : N)
    (steps : run (N.to_nat N_q) (N.to_nat N_k) (N.to_nat d) (N.to_nat d_v)) :
  valid (N_q * N_k) d d_v M Y n last bound -> attention (N.to_nat M) setT steps -> (bound <= N.of_nat (accesses steps))%num.
Proof.
move=> ok; apply: certified ok _.
by rewrite cardsT card_prod !card_ord -multE N2Nat.inj_mul.
Qed.

(* flashsim prove --N 4096 --d 64 --M 25600 *)
Example prove_md (steps : run (N.to_nat 4096) (N.to_nat 4096) (N.to_nat 64) (N.to_nat 64)) :
  attention (N.to_nat 25600) setT steps -> (10763018 <= N.of_nat (accesses steps))%num.
Proof. by apply: (@certified_all _ _ _ _ _ 51227 419 25332); vm_compute. Qed.

Print Assumptions phases_bound.
Print Assumptions last_phase.
Print Assumptions forward_bound_all.
Print Assumptions compulsory.
Print Assumptions certified_all.
