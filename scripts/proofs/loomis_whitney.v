(* Loomis and Whitney: a finite set of points (a, b, c) has at most sqrt (AB * BC * AC) elements, if it casts shadows of AB, BC
   and AC elements. Squared, this is an inequality of whole numbers. *)

Set Warnings "-notation-overridden".
From mathcomp Require Import all_ssreflect.
From Proofs Require Import arithmetic.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Lemma cauchy_schwarz (I : finType) (e u w : I -> nat) :
  (forall i, e i * e i <= u i * w i) -> (\sum_i e i) * (\sum_i e i) <= (\sum_i u i) * (\sum_i w i).
Proof.
move=> each; elim/big_rec3: _ => // i W U E _ /leP big; apply/leP.
by apply: root_sum big _; apply/leP.
Qed.

Section Shadows.
Variables A B C : finType.
Variable points : {set A * B * C}.

Definition shadow_AB := [set (p.1.1, p.1.2) | p in points].
Definition shadow_BC := [set (p.1.2, p.2) | p in points].
Definition shadow_AC := [set (p.1.1, p.2) | p in points].

Lemma card_slices (D E : finType) (S : {set D * E}) : #|S| = \sum_e #|[set d | (d, e) \in S]|.
Proof.
rewrite -sum1_card (partition_big (fun p => p.2) predT) //=.
apply: eq_bigr => e _; rewrite sum1_card.
rewrite -(@card_imset _ _ (fun d => (d, e)) [set d | (d, e) \in S]); last by move=> ? ? [].
apply: eq_card => -[d e'] /=; rewrite unfold_in /=.
apply/andP/imsetP => [[inS /eqP <-]|[d' inS' [-> ->]]]; first by exists d => //; rewrite inE.
by rewrite inE in inS'.
Qed.

Theorem loomis_whitney : #|points| * #|points| <= #|shadow_AB| * #|shadow_BC| * #|shadow_AC|.
Proof.
rewrite (card_slices points) (card_slices shadow_BC) (card_slices shadow_AC) [#|shadow_AB| * _]big_distrr /=.
apply: cauchy_schwarz => c; set slice := [set p | (p, c) \in points].
have in_AB : #|slice| <= #|shadow_AB|.
  apply: subset_leq_card; apply/subsetP => -[a b]; rewrite inE => inside.
  by apply/imsetP; exists (a, b, c).
have in_box : #|slice| <= #|[set b | (b, c) \in shadow_BC]| * #|[set a | (a, c) \in shadow_AC]|.
  rewrite mulnC -cardsX; apply: subset_leq_card; apply/subsetP => -[a b]; rewrite !inE /= => inside.
  by apply/andP; split; apply/imsetP; exists (a, b, c).
by rewrite -mulnA; apply: leq_mul.
Qed.
End Shadows.
